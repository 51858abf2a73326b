//! What a stage of continuous integration is.

/// Commands, and what their outcome depends on.
#[derive(Debug)]
pub(super) struct Stage {
    /// Its name in options, stamps and tables.
    pub(super) name: &'static str,
    /// A sentence about it.
    pub(super) what: &'static str,
    /// What `.ci/install` installs for it.
    pub(super) needs: &'static [&'static str],
    /// Variables that its lines see, as bash assigns them.
    pub(super) settings: &'static [&'static str],
    /// The lines of bash that it runs. `xtask` is the program that runs them.
    pub(super) lines: &'static [&'static str],
    /// The lines that do all of it, if `lines` pass over work that was accepted before. Else none.
    pub(super) whole: &'static [&'static str],
    /// When it runs.
    pub(super) class: Class,
}

/// When a stage runs.
#[derive(Debug)]
pub(super) enum Class {
    /// In every run.
    Always,
    /// In every run but those in which the stage of this name runs, which does the same and more.
    Unless(&'static str),
    /// If it was not green for the same inputs before, and otherwise when its turn comes.
    Rotation {
        /// The files of the repository that it depends on, as pathspecs of git. Each must match a file.
        files: &'static [&'static [&'static str]],
        /// Lines of bash that print the versions of the tools that it depends on.
        tools: &'static [&'static str],
    },
}

impl Stage {
    /// Whether its inputs can excuse it from a run.
    pub(super) fn rotates(&self) -> bool {
        matches!(self.class, Class::Rotation { .. })
    }

    /// The files that it depends on; none if it always runs.
    pub(super) fn files(&self) -> impl Iterator<Item = &'static str> {
        let files = match self.class {
            Class::Always | Class::Unless(_) => &[],
            Class::Rotation { files, .. } => files,
        };
        files.iter().flat_map(|group| group.iter().copied())
    }

    /// The lines that print its tools' versions.
    pub(super) fn tools(&self) -> &'static [&'static str] {
        match self.class {
            Class::Always | Class::Unless(_) => &[],
            Class::Rotation { tools, .. } => tools,
        }
    }

    /// The lines that it runs: of all its work, or without work that was accepted before.
    pub(super) fn lines(&self, whole: bool) -> &'static [&'static str] {
        if whole && !self.whole.is_empty() { self.whole } else { self.lines }
    }

    /// Everything that its declaration says, as one text.
    pub(super) fn declaration(&self) -> String {
        let files: Vec<&str> = self.files().collect();
        let parts = [self.needs, self.settings, self.lines, self.whole, &files, self.tools()];
        parts.map(|part| part.join("\n")).join("\n\n")
    }
}
