"""What the operator does: for each kind a pure plan, and the steps that it takes."""
