//! A plan is data: the passes that encode or decode a tensor, over named buffers, with sizes and launch shapes.
//!
//! A plan knows no backend, and a backend knows no codec: it is handed passes. Everything here is pure.

mod decode;
mod encode;
mod kernel;
mod limits;
mod matrices;
mod pass;
mod policy;
mod role;

pub(crate) use self::decode::check_count;
pub use self::decode::{DecodeMode, DecodePlan};
pub use self::encode::EncodePlan;
pub(crate) use self::encode::{Scale, check_input, omega};
pub use self::kernel::Kernel;
pub use self::limits::Limits;
pub(crate) use self::matrices::{Part, Side, Table};
pub(crate) use self::pass::ALIGNMENT;
pub use self::pass::{Bindings, Params, Pass, STATUS_BYTES, Span};
pub use self::policy::NonFinite;
pub(crate) use self::policy::refuse_not_finite;
pub(crate) use self::role::ROLES;
pub use self::role::{Role, Sizes};
