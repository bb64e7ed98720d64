"""From steps to what is measured: buckets, the context, memory and time. The entrance is `planning.plan.make_plan`."""
