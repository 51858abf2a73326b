//! The element types of a gradient.

use half::{bf16, f16};

/// The element type of a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl Dtype {
    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The type's name: `f32`, `f16` or `bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// The byte that stands for the type on the wire and in kernel parameters.
    pub(crate) const fn tag(self) -> u8 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Bf16 => 2,
        }
    }

    pub(crate) const fn from_tag(tag: u8) -> Option<Self> {
        match tag {
            0 => Some(Self::F32),
            1 => Some(Self::F16),
            2 => Some(Self::Bf16),
            _ => None,
        }
    }
}

/// A borrowed gradient: `&[f32]`, `&[f16]` or `&[bf16]` (the half types of the crate `half`).
///
/// ```
/// use gradwire::{Dtype, Gradient};
/// let g = Gradient::from(&[1.0f32, -2.0][..]);
/// assert_eq!((g.len(), g.dtype()), (2, Dtype::F32));
/// let mut buffer = vec![half::bf16::ONE; 3];
/// assert_eq!(Gradient::from(&mut buffer).dtype(), Dtype::Bf16);
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Gradient<'a> {
    /// IEEE 754 binary32.
    F32(&'a [f32]),
    /// IEEE 754 binary16.
    F16(&'a [f16]),
    /// bfloat16.
    Bf16(&'a [bf16]),
}

impl<'a> Gradient<'a> {
    /// Elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(x) => x.len(),
            Self::F16(x) => x.len(),
            Self::Bf16(x) => x.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Type of the elements.
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::F32(_) => Dtype::F32,
            Self::F16(_) => Dtype::F16,
            Self::Bf16(_) => Dtype::Bf16,
        }
    }

    /// The `elements` elements from `first` on.
    pub(crate) fn part(self, first: usize, elements: usize) -> Self {
        match self {
            Self::F32(x) => Self::F32(&x[first..first + elements]),
            Self::F16(x) => Self::F16(&x[first..first + elements]),
            Self::Bf16(x) => Self::Bf16(&x[first..first + elements]),
        }
    }

    /// The elements' bytes, in this machine's order.
    pub fn as_bytes(&self) -> &'a [u8] {
        match self {
            Self::F32(x) => bytemuck::cast_slice(x),
            Self::F16(x) => bytemuck::cast_slice(x),
            Self::Bf16(x) => bytemuck::cast_slice(x),
        }
    }
}

macro_rules! gradient_from {
    ($($t:ty => $variant:ident),*) => {$(
        impl<'a> From<&'a [$t]> for Gradient<'a> {
            fn from(x: &'a [$t]) -> Self {
                Self::$variant(x)
            }
        }
        impl<'a> From<&'a Vec<$t>> for Gradient<'a> {
            fn from(x: &'a Vec<$t>) -> Self {
                Self::$variant(x)
            }
        }
        impl<'a, const N: usize> From<&'a [$t; N]> for Gradient<'a> {
            fn from(x: &'a [$t; N]) -> Self {
                Self::$variant(x)
            }
        }
        // What a training loop holds mutably is often handed over as it is.
        impl<'a> From<&'a mut [$t]> for Gradient<'a> {
            fn from(x: &'a mut [$t]) -> Self {
                Self::$variant(x)
            }
        }
        impl<'a> From<&'a mut Vec<$t>> for Gradient<'a> {
            fn from(x: &'a mut Vec<$t>) -> Self {
                Self::$variant(x)
            }
        }
        impl<'a, const N: usize> From<&'a mut [$t; N]> for Gradient<'a> {
            fn from(x: &'a mut [$t; N]) -> Self {
                Self::$variant(x)
            }
        }
    )*};
}
gradient_from!(f32 => F32, f16 => F16, bf16 => Bf16);

/// A type of element that gradients come in: `f32`, and `f16` and `bf16` of the crate `half`.
pub trait Element: bytemuck::Pod + sealed::Sealed {
    /// The type, as plans name it.
    const DTYPE: Dtype;
}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
}

impl Element for f16 {
    const DTYPE: Dtype = Dtype::F16;
}

impl Element for bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
}

/// Kernels read these types and no other.
mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}
