//! How much the tests run: one setting for all of them.

/// How much to run. Each depth has all that the one before it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// For a developer's inner loop: golden vectors, and every path that kernels and plans tell apart once.
    Quick,
    /// For continuous integration: every setting of every codec, each with some of the inputs, types and lengths in
    /// turn, so that all of them are met by every shape of a kernel.
    Default,
    /// Every setting with every input, type and length; no tensor above 2^25 elements.
    Sweeps,
    /// Tensors above 2^25 elements and long statistics too.
    Full,
}

impl Depth {
    /// The environment variable of [`Depth::from_environment`].
    pub const VARIABLE: &'static str = "GRADWIRE_DEPTH";

    /// The depths that can be asked for, by their names.
    pub const NAMES: [(&'static str, Self); 3] =
        [("quick", Self::Quick), ("default", Self::Default), ("full", Self::Full)];

    /// The depth of that name.
    ///
    /// # Errors
    /// A message that lists the names there are.
    ///
    /// ```
    /// use gradwire_tests::Depth;
    ///
    /// assert_eq!(Depth::parse("quick"), Ok(Depth::Quick));
    /// assert!(Depth::parse("deep").unwrap_err().contains("quick, default or full"));
    /// ```
    pub fn parse(name: &str) -> Result<Self, String> {
        let found = Self::NAMES.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, depth)| depth).ok_or_else(|| format!("`{name}` is no depth; it can be quick, default or full"))
    }

    /// What the environment variable says: `quick`, `default` or `full`. [`Depth::Default`] if it is not set.
    ///
    /// # Errors
    /// A message, for any other value.
    pub fn from_environment() -> Result<Self, String> {
        match std::env::var_os(Self::VARIABLE) {
            None => Ok(Self::Default),
            Some(name) => {
                Self::parse(&name.to_string_lossy()).map_err(|message| format!("{}: {message}", Self::VARIABLE))
            }
        }
    }

    /// [`Depth::from_environment`], for a test.
    ///
    /// # Panics
    /// With the message, where the variable says anything else.
    #[must_use]
    pub fn of_tests() -> Self {
        Self::from_environment().unwrap_or_else(|message| panic!("{message}"))
    }

    /// The environment variable that says which part of a sweep has its turn: a number, 0 if it is not set.
    pub const TURN: &'static str = "GRADWIRE_TURN";

    /// Whether the case `index` of a sweep runs: all do in a whole sweep, else one of `parts` has its turn. The command
    /// `cargo xtask test` draws the turn from the tree of the commit, so that landings cover all parts in time.
    ///
    /// # Panics
    /// If [`Depth::TURN`] is set to anything but a number.
    #[must_use]
    pub fn takes(self, index: usize, parts: usize) -> bool {
        let turn = std::env::var(Self::TURN).map_or(0, |turn| {
            turn.parse::<usize>().unwrap_or_else(|_| panic!("{}: `{turn}` is no number", Self::TURN))
        });
        self.sweeps() || index % parts == turn % parts
    }

    /// Whether sweeps are run whole.
    #[must_use]
    pub fn sweeps(self) -> bool {
        self >= Self::Sweeps
    }
}
