"""Playing a policy out: what its tables lead to, exactly, without solving anything."""
