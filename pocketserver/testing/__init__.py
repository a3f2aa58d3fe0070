"""For the test suites of client developers: a simulated device as a pytest fixture."""
