"""Node: print columns, and the strategy with defaults and validation. Import `strategy.KIND`."""
