"""Real execution of workflows: tasks as processes on virtual nodes, files in a shared store."""
