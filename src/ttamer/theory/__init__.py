"""The paper's theory as running code: optima to compare with, and its two demonstrations."""
