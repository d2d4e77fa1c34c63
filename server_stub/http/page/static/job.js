// Curves, log and stacks of the job page.
