//! Wall time as it stands on the wire. Nothing here reads a clock: the caller passes the time in.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A point in wall time, in milliseconds since the Unix epoch; on the wire RFC 3339 in UTC with exactly
/// three digits of fraction (`2026-11-30T17:44:43.031Z`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// From milliseconds since the Unix epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Milliseconds from `earlier` to `self`; 0 when `earlier` is later (clocks may be set back).
    pub const fn millis_since(self, earlier: Self) -> u64 {
        let difference = self.0.saturating_sub(earlier.0);
        if difference < 0 { 0 } else { difference as u64 }
    }

    /// `self` moved by `millis` (saturating).
    pub const fn plus_millis(self, millis: i64) -> Self {
        Self(self.0.saturating_add(millis))
    }
}

impl From<jiff::Timestamp> for Timestamp {
    fn from(value: jiff::Timestamp) -> Self {
        Self(value.as_millisecond())
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(time) => write!(f, "{time:.3}"),
            Err(_) => write!(f, "{}ms", self.0),
        }
    }
}

impl std::str::FromStr for Timestamp {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(text.parse::<jiff::Timestamp>()?.into())
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(feature = "schema")]
mod schema {
    use utoipa::openapi::{ObjectBuilder, RefOr, Schema, schema::SchemaFormat, schema::Type};

    impl utoipa::PartialSchema for super::Timestamp {
        fn schema() -> RefOr<Schema> {
            ObjectBuilder::new()
                .schema_type(Type::String)
                .format(Some(SchemaFormat::KnownFormat(utoipa::openapi::KnownFormat::DateTime)))
                .into()
        }
    }

    impl utoipa::ToSchema for super::Timestamp {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_of_fraction_always() {
        let check = |millis, expected: &str| {
            let time = Timestamp::from_millis(millis);
            assert_eq!(time.to_string(), expected);
            assert_eq!(expected.parse::<Timestamp>().unwrap(), time);
        };
        check(0, "1970-01-01T00:00:00.000Z");
        check(1_796_060_683_031, "2026-11-30T17:44:43.031Z");
        check(1_796_060_683_500, "2026-11-30T17:44:43.500Z");
    }

    #[test]
    fn a_clock_set_back_gives_no_negative_age() {
        assert_eq!(Timestamp::from_millis(5).millis_since(Timestamp::from_millis(9)), 0);
    }
}
