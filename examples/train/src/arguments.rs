//! Arguments that need more than a value by name.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches, value_parser};
use gradnorm::Arm;

/// Which arguments were given, rather than left at their defaults.
///
/// To be flattened into a command as its first field: reading a field takes its argument away.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given(HashSet<String>);

impl Given {
    /// Whether the argument that is read into a field of this name was given.
    pub fn has(&self, field: &str) -> bool {
        self.0.contains(field)
    }
}

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let ids = matches.ids().map(|id| id.as_str());
        Ok(Self(ids.filter(given).map(str::to_string).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Given {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

/// `--arm NAME DIR...`, as often as there are arms.
///
/// To be flattened into a command: a field of its own would lose where one arm ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arms(Vec<(String, Vec<PathBuf>)>);

impl Arms {
    /// The argument's name.
    pub const NAME: &str = "arm";

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The arms with the logs of their runs.
    pub fn read(&self) -> Result<Vec<Arm>, crate::Error> {
        let refused = |name: &str, why: &str| crate::Error::Argument {
            argument: Self::NAME,
            value: name.to_string(),
            why: why.to_string(),
        };
        let names: Vec<&str> = self.0.iter().map(|(name, _)| name.as_str()).collect();
        if let [name] = names.as_slice() {
            let why = "there must be another --arm to compare it with";
            return Err(refused(name, why));
        }
        for (place, name) in names.iter().enumerate() {
            if names[..place].contains(name) {
                return Err(refused(name, "given twice; name all its runs at once"));
            }
        }
        let arms = self.0.iter();
        Ok(arms
            .map(|(name, dirs)| Arm::read(name, dirs))
            .collect::<Result<_, _>>()?)
    }
}

impl FromArgMatches for Arms {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let arms = matches.get_occurrences::<OsString>(Self::NAME);
        let arms = arms.into_iter().flatten().map(|mut values| {
            let name = values.next().expect("an arm has at least two values");
            let dirs = values.map(PathBuf::from).collect();
            (name.to_string_lossy().into_owned(), dirs)
        });
        Ok(Self(arms.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Arms {
    fn augment_args(command: Command) -> Command {
        let help = "An arm, with the folders of its runs, paired by their seeds with those of the \
                    first arm; at least two of these";
        command.arg(
            Arg::new(Self::NAME)
                .long(Self::NAME)
                .help(help)
                .value_names(["NAME", "DIR"])
                .num_args(2..)
                .value_parser(value_parser!(OsString))
                .action(ArgAction::Append),
        )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
