"""What a user may set: the model, its layers, and how they become one."""
