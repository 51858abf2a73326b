//! The floating-point environment that the formulas are written for, whatever the caller's is.

use std::marker::PhantomData;

/// While it lives, the thread that made it computes in the standard floating-point environment: results are rounded to
/// nearest even, subnormal numbers are kept, and no exception traps. Dropping it gives the thread back the environment
/// that it had.
///
/// The calls of this crate make one for themselves, and so does each piece of work that they give to rayon's threads.
/// Code beside them needs one where its sums have to be the same bits as on another machine, as in an engine that
/// implements [`Collective::all_reduce_sum`](crate::Collective::all_reduce_sum).
///
/// - **On x86** it sets MXCSR, and on AArch64 FPCR. Nothing is written where the register has the standard control bits
///   already. Elsewhere it does nothing.
/// - **Exception flags** that are raised meanwhile are forgotten where the caller's environment was another one.
/// - **Closures** are the safe way to use it for a few operations: [`FloatEnvironment::within`]. A compiler may move an
///   operation on local numbers beyond the end of the environment. It does not move what is read from memory and
///   written to it.
///
/// ```
/// use gradwire::FloatEnvironment;
///
/// fn add(sums: &mut [f32], values: &[f32]) {
///     let _environment = FloatEnvironment::standard();
///     sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
/// }
/// # let mut sums = [1.0];
/// # add(&mut sums, &[2.0]);
/// # assert_eq!(sums, [3.0]);
/// ```
#[derive(Debug)]
#[must_use = "the environment ends when this is dropped"]
pub struct FloatEnvironment {
    /// The register as the caller had it, if it was written.
    before: Option<register::Word>,
    /// The register is a thread's own, so this must not go to another one.
    of_thread: PhantomData<*const ()>,
}

impl FloatEnvironment {
    /// The standard environment for the calling thread.
    #[inline]
    pub fn standard() -> Self {
        let now = register::read();
        let standard = register::standard(now);
        let before = (standard != now).then(|| {
            register::write(standard);
            now
        });
        Self { before, of_thread: PhantomData }
    }

    /// What `work` comes to in the standard environment.
    ///
    /// ```
    /// # use gradwire::FloatEnvironment;
    /// let third = FloatEnvironment::within(|| std::hint::black_box(1f32) / 3.0);
    /// assert_eq!(third.to_bits(), 0x3eaa_aaab);
    /// ```
    #[inline]
    pub fn within<R>(work: impl FnOnce() -> R) -> R {
        // What the closure took with it is known only after the first barrier, and its result has to be known before
        // the second: no operation is moved out from between.
        let environment = Self::standard();
        let result = std::hint::black_box(std::hint::black_box(work)());
        drop(environment);
        result
    }
}

impl Drop for FloatEnvironment {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.before {
            register::write(before);
        }
    }
}

#[cfg(all(not(miri), any(target_arch = "x86_64", all(target_arch = "x86", target_feature = "sse"))))]
mod register {
    use std::arch::asm;

    /// MXCSR.
    pub(super) type Word = u32;

    /// Denormals are zeros, the masks of exceptions, rounding, flush to zero.
    const CONTROL: Word = 0xffc0;
    /// All exceptions masked. The other control bits are zero.
    const STANDARD: Word = 0x1f80;

    /// The same exception flags with the standard control bits.
    #[inline]
    pub(super) fn standard(word: Word) -> Word {
        word & !CONTROL | STANDARD
    }

    #[inline]
    pub(super) fn read() -> Word {
        let mut word: Word = 0;
        // SAFETY: the instruction needs four bytes that it may write, and `word` has them. It changes no register.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) };
        word
    }

    /// Not `nomem`, so that no access to memory is moved across it.
    #[inline]
    pub(super) fn write(word: Word) {
        // SAFETY: the instruction needs four bytes that it may read, and no reserved bit among them set: every word here
        // is one that the register held, but for control bits, which all exist. Compiled code may run only in the
        // standard environment: this either makes it the standard one, or gives back what the caller made it.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack)) };
    }
}

#[cfg(all(not(miri), target_arch = "aarch64"))]
mod register {
    use std::arch::asm;

    /// FPCR.
    pub(super) type Word = u64;

    /// Rounding to nearest even, subnormal numbers and NaNs as IEEE 754 has them, no traps: all control bits are zero.
    #[inline]
    pub(super) fn standard(_: Word) -> Word {
        0
    }

    #[inline]
    pub(super) fn read() -> Word {
        let word: Word;
        // SAFETY: every program may read the register, and nothing else changes.
        unsafe { asm!("mrs {}, fpcr", out(reg) word, options(nostack, preserves_flags)) };
        word
    }

    /// Not `nomem`, so that no access to memory is moved across it.
    #[inline]
    pub(super) fn write(word: Word) {
        // SAFETY: every program may write the register, and the word is zero or one that it held. Compiled code may run
        // only in the standard environment: this either makes it the standard one, or gives back what the caller made
        // it.
        unsafe { asm!("msr fpcr, {}", in(reg) word, options(nostack)) };
    }
}

#[cfg(any(
    miri,
    not(any(target_arch = "x86_64", all(target_arch = "x86", target_feature = "sse"), target_arch = "aarch64"))
))]
mod register {
    /// There is no register to set.
    pub(super) type Word = u32;

    pub(super) fn standard(_: Word) -> Word {
        0
    }

    pub(super) fn read() -> Word {
        0
    }

    pub(super) fn write(_: Word) {}
}
