"""What a training step needs besides a model: processes, precision, optimizer, schedule.

    learning_rate_at(config, step=100)  ->  0.00087

Nothing here knows what is trained, or on which data.
"""
