"""Other ways to run the same job, each as a function that returns when it is over. Nothing of ours is imported."""
