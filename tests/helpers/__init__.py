"""What tests share: reference implementations, generators of inputs, problems, and processes to run."""
