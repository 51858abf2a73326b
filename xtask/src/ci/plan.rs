//! Which stages run, and why.

use super::stage::Stage;

/// What is decided of a stage.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Decision {
    /// What is done with it.
    pub(super) does: Does,
    /// Why.
    pub(super) why: String,
}

/// What is done with a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    /// It runs, and may pass over what it accepted before.
    Run,
    /// All of it runs.
    RunWhole,
    /// It is left out.
    LeftOut,
}

impl Does {
    /// Whether it runs.
    pub(super) fn runs(self) -> bool {
        self != Self::LeftOut
    }
}

/// What its stamp says of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It was green for the same state, at this commit.
    Green(String),
    /// It was not, for this reason.
    Open(String),
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    /// All of every stage.
    pub(super) full: bool,
    /// Only the stages of these names; all where there is none.
    pub(super) only: &'a [String],
    /// What chooses the one stage that runs although it need not.
    pub(super) turn: u64,
}

/// Decides of every stage. `standing` says what is known of one that can be left out.
pub(super) fn decide<'s>(
    stages: &'s [Stage],
    asked: Asked<'_>,
    mut standing: impl FnMut(&Stage) -> Result<Standing, String>,
) -> Result<Vec<(&'s Stage, Decision)>, String> {
    if let Some(name) = asked.only.iter().find(|name| stages.iter().all(|stage| stage.name != **name)) {
        let names: Vec<&str> = stages.iter().map(|stage| stage.name).collect();
        return Err(format!("`{name}` is no stage; they are {}", names.join(", ")));
    }
    let mut all = Vec::new();
    for stage in stages {
        let (does, why) = if !asked.only.is_empty() && !asked.only.iter().any(|name| name == stage.name) {
            (Does::LeftOut, "it was not asked for".to_owned())
        } else if asked.full {
            (Does::RunWhole, "all was asked for".to_owned())
        } else if !asked.only.is_empty() {
            (Does::Run, "it was asked for".to_owned())
        } else if !stage.rotates() {
            (Does::Run, "it always runs".to_owned())
        } else {
            match standing(stage)? {
                Standing::Open(why) => (Does::Run, why),
                Standing::Green(commit) => (Does::LeftOut, format!("it was green for the same inputs at {commit}")),
            }
        };
        all.push((stage, Decision { does, why }));
    }
    if asked.only.is_empty() {
        take_turn(&mut all, asked.turn);
    }
    Ok(all)
}

/// Lets one of the stages that would be left out run: that whose turn it is, or else the next one.
fn take_turn(all: &mut [(&Stage, Decision)], turn: u64) {
    let mut rotating: Vec<&mut Decision> =
        all.iter_mut().filter(|(stage, _)| stage.rotates()).map(|(_, decision)| decision).collect();
    let count = rotating.len();
    // The remainder is below the count, which is a usize.
    let first = (turn % count.max(1) as u64) as usize;
    let chosen = (0..count).map(|step| (first + step) % count).find(|at| !rotating[*at].does.runs());
    if let Some(decision) = chosen.map(|at| &mut rotating[at]) {
        decision.does = Does::RunWhole;
        decision.why = format!("it is its turn; {}", decision.why);
    }
}

#[cfg(test)]
mod tests {
    use super::super::stage::Class;
    use super::*;

    const PLAIN: Stage =
        Stage { name: "", what: "", needs: &[], settings: &[], lines: &["true"], whole: &[], class: Class::Always };

    fn stages() -> Vec<Stage> {
        let rotates = || Class::Rotation { files: &[&["a"]], tools: &[] };
        vec![
            Stage { name: "test", ..PLAIN },
            Stage { name: "one", class: rotates(), ..PLAIN },
            Stage { name: "two", class: rotates(), ..PLAIN },
            Stage { name: "three", class: rotates(), ..PLAIN },
        ]
    }

    /// What is done, with those stages green that are named.
    fn done(green: &[&str], full: bool, only: &[&str], turn: u64) -> Result<String, String> {
        let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
        let stages = stages();
        let all = decide(&stages, Asked { full, only: &only, turn }, |stage| {
            assert!(stage.rotates(), "nothing excuses the others");
            let is_green = green.contains(&stage.name);
            Ok(if is_green { Standing::Green("c0".to_owned()) } else { Standing::Open("it changed".to_owned()) })
        })?;
        let word = |does: Does| match does {
            Does::Run => "run",
            Does::RunWhole => "whole",
            Does::LeftOut => "-",
        };
        Ok(all.iter().map(|(_, decision)| word(decision.does)).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_stage_that_was_green_is_left_out_but_for_the_one_whose_turn_it_is() {
        let of = |green: &[&str], turn| done(green, false, &[], turn).unwrap();
        assert_eq!(of(&[], 0), "run run run run");
        assert_eq!(of(&["one", "two", "three"], 0), "run whole - -");
        assert_eq!(of(&["one", "two", "three"], 4), "run - whole -");
        assert_eq!(of(&["one", "two", "three"], 5), "run - - whole");
        // That whose turn it is runs in any case, so that the next one takes it.
        assert_eq!(of(&["two", "three"], 3), "run run whole -");
        assert_eq!(of(&["one", "two"], 5), "run whole - run");
        assert_eq!(of(&["two"], 6), "run run whole run", "exactly one");
        for green in [vec!["one"], vec!["one", "three"], vec!["one", "two", "three"]] {
            for turn in 0..7 {
                assert_eq!(of(&green, turn).matches("whole").count(), 1, "{green:?}, turn {turn}");
            }
        }
    }

    #[test]
    fn within_as_many_turns_as_there_are_stages_each_has_run() {
        let green = ["one", "two", "three"];
        let mut whole = [false; 4];
        for turn in 10..13 {
            let done = done(&green, false, &[], turn).unwrap();
            whole.iter_mut().zip(done.split(' ')).for_each(|(seen, word)| *seen |= word == "whole");
        }
        assert_eq!(whole, [false, true, true, true]);
    }

    #[test]
    fn all_and_some_stages_can_be_asked_for() {
        let green = ["one", "two", "three"];
        assert_eq!(done(&green, true, &[], 1).unwrap(), "whole whole whole whole");
        assert_eq!(done(&green, false, &["two"], 0).unwrap(), "- - run -");
        assert_eq!(done(&green, true, &["two", "test"], 0).unwrap(), "whole - whole -");
        let told = done(&green, false, &["four"], 0).unwrap_err();
        assert_eq!(told, "`four` is no stage; they are test, one, two, three");
    }

    #[test]
    fn a_state_that_cannot_be_found_is_an_error() {
        let stages = stages();
        let asked = Asked { full: false, only: &[], turn: 0 };
        let told = decide(&stages, asked, |stage| Err(format!("{}: no file", stage.name)));
        assert_eq!(told.unwrap_err(), "one: no file");
    }
}
