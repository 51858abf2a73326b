//! Bodies of the targets over what a compressor reads: messages of a step, saved states, recipes as texts. Neither
//! libFuzzer nor a nightly compiler has a part in them.
//!
//! What must hold: bytes of others are refused with a typed error, or taken; nothing panics; and after an error the
//! compressor is as it was.

pub mod edits;
pub mod messages;
pub mod models;
pub mod pair;
pub mod recipes;
pub mod states;
