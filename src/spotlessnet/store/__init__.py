"""Safe files: checkpoints, memories, receipts."""
