//! Links the binary at a fixed address.
//!
//! Every keeper is this binary again. A position-independent one of this size rewrites about a megabyte of its own
//! pages at each start; at a fixed address those pages stay shared by all keepers.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-no-pie");
}
