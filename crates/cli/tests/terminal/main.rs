//! The terminal runtime end to end: the real binary, real shells, real processes.

#[cfg(test)]
mod attach;
#[cfg(test)]
mod house;
#[cfg(test)]
mod mcp;
#[cfg(test)]
mod people;
#[cfg(test)]
mod protocol;
#[cfg(test)]
mod sessions;
#[cfg(test)]
mod shells;
#[cfg(test)]
mod support;
