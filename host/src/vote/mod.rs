//! The majority of the signs of many payloads.

pub(crate) mod plan;

pub(crate) use self::plan::{UNIT, UNIT_BYTES, passes};
