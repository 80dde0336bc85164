"""What is known of the shapes of a model's values, and of the values that compute shapes."""
