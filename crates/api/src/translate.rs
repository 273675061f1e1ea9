//! The only conversions between wire types and values of the terminal runtime, independent of the transport.

pub mod from_wire;
pub mod to_wire;
