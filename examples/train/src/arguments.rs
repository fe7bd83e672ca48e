//! Arguments that need more than a value by name.

use std::collections::HashSet;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, Error, FromArgMatches};

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
