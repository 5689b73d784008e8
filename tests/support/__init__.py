"""What several tests share: oracles, strategies, servers, traces."""
