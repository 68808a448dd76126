"""batch/v1: CronJob and Job, both read-only."""
