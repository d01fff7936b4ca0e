"""The steps of a rank: told apart, timed, logged."""
