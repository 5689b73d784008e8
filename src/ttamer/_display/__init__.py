"""What other packages show with: SVG drawings, cards in notebooks, and progress."""
