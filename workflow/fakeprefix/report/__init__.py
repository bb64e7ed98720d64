"""What a person looks at: the page of a run, its plots, the page of several runs."""
