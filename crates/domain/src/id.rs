//! Ids: newtypes over a unique number, printed with a prefix (`run_01k…`).
//!
//! An id is derived from an [`IdSeed`] that is part of an event; this module generates no numbers. Ids sort by creation
//! time, both as numbers and as text. Foreign ids (messages of a chat service, sessions of an engine) are opaque texts
//! and are not defined here.

use alloc::string::String;
use core::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A unique number that increases with time: a version 7 UUID, generated outside the domain and supplied with the
/// event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdSeed(pub u128);

impl IdSeed {
    /// The `n`th number derived from this one within the same event.
    #[must_use]
    pub fn nth(self, n: u8) -> Self {
        Self(self.0.wrapping_add(u128::from(n)))
    }
}

/// Crockford's base 32 in lower case. It has no letters that resemble digits, and text sorts like the number.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// 128 bits in groups of five.
const SEED_DIGITS: usize = 26;

impl fmt::Display for IdSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0_u8; SEED_DIGITS];
        for (place, digit) in text.iter_mut().rev().enumerate() {
            *digit = ALPHABET[((self.0 >> (5 * place)) & 31) as usize];
        }
        f.write_str(core::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for IdSeed {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        // The first digit holds only three bits, so a value above 7 would overflow.
        if text.len() != SEED_DIGITS || text.as_bytes()[0] > b'7' {
            return Err(InvalidId { expected: "26 base-32 digits" });
        }
        text.bytes()
            .try_fold(0_u128, |number, byte| {
                let digit = ALPHABET.iter().position(|letter| *letter == byte);
                digit
                    .map(|digit| (number << 5) | digit as u128)
                    .ok_or(InvalidId { expected: "26 base-32 digits" })
            })
            .map(Self)
    }
}

/// A text is not a valid id of the expected type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an id of this kind, expected {expected}")]
pub struct InvalidId {
    /// The format of such an id.
    pub expected: &'static str,
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub IdSeed);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let wrong = InvalidId { expected: concat!($prefix, " and 26 base-32 digits") };
                let digits = text.strip_prefix($prefix).ok_or_else(|| wrong.clone())?;
                digits.parse().map(Self).map_err(|_| wrong)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    )*};
}

ids! {
    /// A task or conversation given to one engine in one workspace.
    RunId = "run_";
    /// One unit of engine work, from a prompt to an outcome.
    TurnId = "turn_";
    /// A question or approval for a person.
    InteractionId = "int_";
    /// One item to be delivered to a conversation. Also the stable key by which a channel can deduplicate.
    DeliveryId = "dlv_";
}

impl Serialize for IdSeed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for IdSeed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn an_id_survives_its_text_form() {
        for number in [0, 1, u128::MAX, 0x0192_f00d_0000_7000_8000_0000_0000_beef] {
            let id = RunId(IdSeed(number));
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    #[test]
    fn text_sorts_as_the_number_does() {
        let (earlier, later) = (TurnId(IdSeed(31 << 70)), TurnId(IdSeed(32 << 70)));
        assert!(earlier < later && earlier.to_string() < later.to_string());
    }

    #[test]
    fn another_kind_of_id_is_refused() {
        let run = RunId(IdSeed(7)).to_string();
        assert_eq!(run.parse::<TurnId>(), Err(InvalidId { expected: "turn_ and 26 base-32 digits" }));
        for wrong in ["", "run_", "run_é", "run_zzzzzzzzzzzzzzzzzzzzzzzzzz", "run_0000000000000000000000000u"]
        {
            assert!(wrong.parse::<RunId>().is_err(), "{wrong}");
        }
    }
}
