/// Where the random draws of an encode come from: (run, step, tensor).
///
/// The draw of an element is Philox4x32-7 of this address and the element's index, so it is the same on every
/// backend and can be replayed. Give every step and every tensor of a model its own address: draws that repeat
/// make rounding errors that add up instead of cancelling.
///
/// ```
/// use gradwire::Seed;
/// let seed = Seed::new(42).step(1000).tensor(7);
/// assert_ne!(seed, seed.tensor(8));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seed {
    run: u64,
    step: u64,
    tensor: u32,
}

impl Seed {
    /// The draws of a run, at step 0 and tensor 0.
    pub const fn new(run: u64) -> Self {
        Self { run, step: 0, tensor: 0 }
    }

    /// The same run at another step.
    pub const fn step(self, step: u64) -> Self {
        Self { step, ..self }
    }

    /// The same step at another tensor of the model.
    pub const fn tensor(self, tensor: u32) -> Self {
        Self { tensor, ..self }
    }

    pub(crate) fn key(self) -> [u32; 2] {
        halves(self.run)
    }

    pub(crate) fn step_words(self) -> [u32; 2] {
        halves(self.step)
    }

    pub(crate) fn tensor_word(self) -> u32 {
        self.tensor
    }
}

fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}
