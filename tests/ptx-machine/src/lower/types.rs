//! Actions on registers, and the types of operands.

use crate::fault::Violation;
use crate::warp::Warp;

/// What changes registers and cannot fail.
pub(crate) type Compute = Box<dyn Fn(&mut Warp, u32) + Send + Sync>;
/// What passes values between lanes.
pub(crate) type Exchange = Box<dyn Fn(&mut Warp, u32) -> Result<(), Violation> + Send + Sync>;

/// The type that ends an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Pred,
    /// Bits without a meaning, of that many.
    B(u32),
    U(u32),
    S(u32),
    F(u32),
    Bf16,
}

impl Type {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "pred" => Self::Pred,
            "bf16" => Self::Bf16,
            _ => {
                let bits = text.get(1..)?.parse().ok().filter(|b| [8, 16, 32, 64].contains(b))?;
                match text.as_bytes()[0] {
                    b'b' => Self::B(bits),
                    b'u' => Self::U(bits),
                    b's' => Self::S(bits),
                    b'f' if bits > 8 => Self::F(bits),
                    _ => return None,
                }
            }
        })
    }

    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::Pred => 1,
            Self::B(bits) | Self::U(bits) | Self::S(bits) | Self::F(bits) => bits,
            Self::Bf16 => 16,
        }
    }
}
