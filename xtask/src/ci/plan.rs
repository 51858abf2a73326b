//! Which stages run, and why.

use super::stage::{Class, Stage};

/// The decision about a stage.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Decision {
    /// Whether and how it runs.
    pub(super) does: Does,
    /// Why.
    pub(super) why: String,
}

/// Whether and how a stage runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    /// It runs, and may pass over work that it accepted before.
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
pub(super) struct Standing {
    /// Whether it was green for the same state, at this commit; else why it runs.
    pub(super) green: Result<String, String>,
    /// When it was green last, in seconds since 1970; none if it has no stamp.
    pub(super) ran: Option<u64>,
}

/// The request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    /// All of every stage.
    pub(super) full: bool,
    /// Only the stages of these names; all if there is none.
    pub(super) only: &'a [String],
}

/// Decides about every stage. `standing` gives the stamp of a stage that can be left out.
pub(super) fn decide<'s>(
    stages: &'s [Stage],
    asked: Asked<'_>,
    mut standing: impl FnMut(&Stage) -> Result<Standing, String>,
) -> Result<Vec<(&'s Stage, Decision)>, String> {
    if let Some(name) = asked.only.iter().find(|name| stages.iter().all(|stage| stage.name != **name)) {
        let names: Vec<&str> = stages.iter().map(|stage| stage.name).collect();
        return Err(format!("`{name}` is no stage; they are {}", names.join(", ")));
    }
    let (mut all, mut oldest) = (Vec::new(), None);
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
            let Standing { green, ran } = standing(stage)?;
            if let Some(ran) = ran.filter(|_| green.is_ok()) {
                let first = oldest.is_none_or(|(least, _)| ran < least);
                oldest = if first { Some((ran, all.len())) } else { oldest };
            }
            match green {
                Err(why) => (Does::Run, why),
                Ok(commit) => (Does::LeftOut, format!("it was green for the same inputs at {commit}")),
            }
        };
        all.push((stage, Decision { does, why }));
    }
    // Of those that are left out, that runs which ran longest ago. A run of most stages is long without it, and
    // continuous integration ends a run that is too long.
    let rotating = stages.iter().filter(|stage| stage.rotates()).count();
    let running = all.iter().filter(|(stage, decision)| stage.rotates() && decision.does.runs()).count();
    if let Some((_, at)) = oldest.filter(|_| 2 * running <= rotating) {
        let (_, decision) = &mut all[at];
        decision.does = Does::Run;
        decision.why = format!("it is its turn; {}", decision.why);
    }
    if asked.only.is_empty() {
        let runs: Vec<&str> = all.iter().filter(|(_, d)| d.does.runs()).map(|(stage, _)| stage.name).collect();
        for (stage, decision) in &mut all {
            if let Class::Unless(other) = stage.class
                && runs.contains(&other)
            {
                *decision =
                    Decision { does: Does::LeftOut, why: format!("{other} runs, which does the same and more") };
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Stage =
        Stage { name: "", what: "", needs: &[], settings: &[], lines: &["true"], whole: &[], class: Class::Always };

    fn stages() -> Vec<Stage> {
        let rotates = || Class::Rotation { files: &[&["a"]], tools: &[] };
        vec![
            Stage { name: "test", ..PLAIN },
            Stage { name: "one", class: rotates(), ..PLAIN },
            Stage { name: "two", class: rotates(), ..PLAIN },
            Stage { name: "three", class: rotates(), whole: &["true"], ..PLAIN },
        ]
    }

    /// The decisions if the stages in `green` were green. `ran` has the time at which each stage was green last.
    fn done_since(green: &[&str], full: bool, only: &[&str], ran: &[(&str, u64)]) -> Result<String, String> {
        let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
        let stages = stages();
        let all = decide(&stages, Asked { full, only: &only }, |stage| {
            assert!(stage.rotates(), "nothing excuses the others");
            let is_green = green.contains(&stage.name);
            Ok(Standing {
                green: if is_green { Ok("c0".to_owned()) } else { Err("it changed".to_owned()) },
                ran: ran.iter().find(|(name, _)| *name == stage.name).map(|(_, when)| *when),
            })
        })?;
        let word = |does: Does| match does {
            Does::Run => "run",
            Does::RunWhole => "whole",
            Does::LeftOut => "-",
        };
        Ok(all.iter().map(|(_, decision)| word(decision.does)).collect::<Vec<_>>().join(" "))
    }

    fn done(green: &[&str], full: bool, only: &[&str]) -> Result<String, String> {
        done_since(green, full, only, &[("one", 10), ("two", 20), ("three", 30)])
    }

    #[test]
    fn a_stage_that_was_green_is_left_out_but_for_the_one_whose_turn_it_is() {
        let of = |green: &[&str], ran: &[(&str, u64)]| done_since(green, false, &[], ran).unwrap();
        let all = ["one", "two", "three"];
        assert_eq!(of(&[], &[]), "run run run run", "there are no stamps");
        assert_eq!(of(&all, &[("one", 10), ("two", 20), ("three", 30)]), "run run - -");
        assert_eq!(of(&all, &[("one", 40), ("two", 20), ("three", 30)]), "run - run -");
        assert_eq!(of(&all, &[("one", 0), ("two", 0), ("three", 0)]), "run run - -", "exactly one");
        // What runs in any case has no turn.
        assert_eq!(of(&["two", "three"], &[("one", 10), ("two", 20), ("three", 30)]), "run run run -");
        assert_eq!(of(&["one", "two"], &[("one", 10), ("two", 20), ("three", 5)]), "run run - run");
        // Most of them run anyway: the turn waits.
        assert_eq!(of(&["one"], &[("one", 10), ("two", 20), ("three", 15)]), "run - run run");
        assert_eq!(of(&[], &[("one", 10), ("two", 20), ("three", 5)]), "run run run run");
    }

    #[test]
    fn within_as_many_runs_as_there_are_stages_each_has_run() {
        let mut ran = [("one", 0), ("two", 0), ("three", 0)];
        for now in 1..=3 {
            let done = done_since(&["one", "two", "three"], false, &[], &ran).unwrap();
            let at = done.split(' ').skip(1).position(|word| word == "run").unwrap();
            ran[at].1 = now;
        }
        assert!(ran.iter().all(|(_, when)| *when > 0), "{ran:?}");
    }

    #[test]
    fn all_and_some_stages_can_be_asked_for() {
        let green = ["one", "two", "three"];
        assert_eq!(done(&green, true, &[]).unwrap(), "whole whole whole whole");
        assert_eq!(done(&green, false, &["two"]).unwrap(), "- - run -");
        assert_eq!(done(&green, true, &["two", "test"]).unwrap(), "whole - whole -");
        let told = done(&green, false, &["four"]).unwrap_err();
        assert_eq!(told, "`four` is no stage; they are test, one, two, three");
    }

    #[test]
    fn a_stage_runs_unless_another_one_does_the_same() {
        let rotates = Class::Rotation { files: &[&["a"]], tools: &[] };
        let stages = [
            Stage { name: "part", class: Class::Unless("all"), ..PLAIN },
            Stage { name: "all", class: rotates, ..PLAIN },
        ];
        let done = |green: bool, full: bool, only: &[&str]| {
            let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
            let green = if green { Ok("c0".to_owned()) } else { Err("it changed".to_owned()) };
            let known = |_: &Stage| Ok(Standing { green: green.clone(), ran: None });
            let all = decide(&stages, Asked { full, only: &only }, known).unwrap();
            all.iter().map(|(_, decision)| decision.does.runs()).collect::<Vec<_>>()
        };
        assert_eq!(done(true, false, &[]), [true, false]);
        assert_eq!(done(false, false, &[]), [false, true]);
        assert_eq!(done(true, true, &[]), [false, true]);
        assert_eq!(done(false, false, &["part"]), [true, false]);
    }

    #[test]
    fn a_state_that_cannot_be_found_is_an_error() {
        let stages = stages();
        let asked = Asked { full: false, only: &[] };
        let told = decide(&stages, asked, |stage| Err(format!("{}: no file", stage.name)));
        assert_eq!(told.unwrap_err(), "one: no file");
    }
}
