"""From raw rows to a verdict: reads files only and knows nothing of servers."""
