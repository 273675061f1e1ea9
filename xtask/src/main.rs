//! The project's own chores: up, test, ci, tidy, bench.

fn main() {}
