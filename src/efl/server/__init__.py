"""The server: one round, from sampling a cohort to the next model."""
