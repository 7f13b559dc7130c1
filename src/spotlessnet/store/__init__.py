"""Safe files: checkpoints, statistics, receipts."""
