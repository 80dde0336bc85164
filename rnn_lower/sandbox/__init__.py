"""Run work in a child process with limits, since it may end the process, use up memory or never finish."""
