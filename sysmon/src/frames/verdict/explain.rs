//! Explains a verdict: the path from a function to what binds it, in words.

use std::fmt;

use super::{CodeLocation, How, Image, Judge, Mobility, Why, symbols};

/// One step of the path from a function to what binds it.
///
/// See [`Binding::path`] for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    function: String,
    how: String,
}

impl Step {
    /// Returns the name of the function or constant, or its address.
    ///
    /// See [`Binding::path`] for an example.
    pub fn function(&self) -> &str {
        &self.function
    }

    /// Returns how it leads to the next step or, for the last step, what it touches.
    ///
    /// See [`Binding::path`] for an example.
    pub fn how(&self) -> &str {
        &self.how
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.function, self.how)
    }
}

/// What binds a function to its thread.
///
/// ```
/// use indent_sysmon::frames::{Judge, Mobility};
///
/// #[inline(never)]
/// fn who() -> std::thread::ThreadId {
///     std::thread::current().id()
/// }
///
/// let judge = Judge::survey();
/// let binding = judge.explain(who as fn() -> std::thread::ThreadId as usize);
/// assert_eq!(binding.mobility(), Mobility::Bound);
/// assert!(binding.function().is_some());
/// for step in binding.path() {
///     println!("{step}");
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    mobility: Mobility,
    path: Vec<Step>,
    variable: Option<String>,
}

impl Binding {
    /// Returns the verdict on the function.
    ///
    /// See [`Binding`] for an example.
    pub fn mobility(&self) -> Mobility {
        self.mobility
    }

    /// Returns the function that touches what binds, the last of the [`path`](Binding::path).
    ///
    /// See [`Binding`] for an example.
    pub fn function(&self) -> Option<&str> {
        self.path.last().map(Step::function)
    }

    /// Returns the thread-local that binds, if its name is known.
    ///
    /// See [`Binding`] for an example.
    pub fn variable(&self) -> Option<&str> {
        self.variable.as_deref()
    }

    /// Returns the path to what binds, beginning with the function itself.
    ///
    /// It is empty for a movable function, unless the function lends a thread-local to functions
    /// that are bound meanwhile.
    pub fn path(&self) -> &[Step] {
        &self.path
    }
}

impl Judge {
    /// Returns what binds every function that calls through a pointer, if anything does.
    ///
    /// That is a function whose address is taken, and that leaves something of its thread behind.
    ///
    /// ```
    /// let judge = indent_sysmon::frames::Judge::survey();
    /// for step in judge.behind_pointers().iter().flat_map(|binding| binding.path()) {
    ///     println!("{step}");
    /// }
    /// ```
    pub fn behind_pointers(&self) -> Option<Binding> {
        let CodeLocation::Function { image, index } =
            self.places[self.graph.behind_pointer()? as usize]
        else {
            return None;
        };
        let function = &self.images[image as usize].functions[index as usize];
        Some(self.explain(function.range.start))
    }

    /// Explains the verdict on the function around an address.
    ///
    /// See [`Binding`] for an example.
    pub fn explain(&self, ip: usize) -> Binding {
        let Some(function) = self.number(ip) else {
            let step = Step {
                function: format!("{ip:#x}"),
                how: "is no function that was read".to_owned(),
            };
            return Binding {
                mobility: Mobility::Bound,
                path: vec![step],
                variable: None,
            };
        };
        let mobility = self.graph.mobility(function);
        let mut binding = Binding {
            mobility,
            path: Vec::new(),
            variable: None,
        };
        if mobility == Mobility::Movable {
            if let Some(why) = self.finds.get(&function) {
                let (how, variable) = self.words(function, why);
                binding.path.push(self.step(function, how));
                binding.variable = variable;
            }
            return binding;
        }
        let mut node = function;
        while let Some(before) = self.graph.instead_of(node) {
            let how = "may have taken the place of";
            binding.path.push(self.step(node, how.to_owned()));
            node = before;
        }
        while let Some((next, how)) = self.graph.next(node) {
            let how = match how {
                Some(How::Call) => "calls",
                Some(How::Jump) => "jumps to",
                Some(How::Refer) => "refers to",
                None => "calls through a pointer, which may lead to",
            };
            binding.path.push(self.step(node, how.to_owned()));
            node = next;
        }
        let (how, variable) = self.reason(node);
        binding.path.push(self.step(node, how));
        binding.variable = variable;
        binding
    }

    fn step(&self, node: u32, how: String) -> Step {
        let function = match self.places[node as usize] {
            CodeLocation::Function { image, index } => {
                let image = &self.images[image as usize];
                let start = image.functions[index as usize].range.start;
                let name = image.name(start);
                name.unwrap_or_else(|| format!("{start:#x}"))
            }
            CodeLocation::Constant { start, .. } => format!("constant {start:#x}"),
        };
        Step { function, how }
    }

    /// Returns what a node touches itself.
    fn reason(&self, node: u32) -> (String, Option<String>) {
        match self.reason_of(node) {
            Some(why) => self.words(node, why),
            None => ("is bound".to_owned(), None),
        }
    }

    fn words(&self, node: u32, why: &Why) -> (String, Option<String>) {
        let image = &self.images[self.image_of(node)];
        match *why {
            Why::Variable(offset) => {
                let name = image.variable(offset).map(|(name, _)| symbols::plain(name));
                let shown = name.clone().unwrap_or_else(|| format!("fs:{offset:#x}"));
                let how = self.lost.get(&node);
                let how =
                    how.map_or_else(String::new, |how| format!(" and loses its address: {how}"));
                (format!("touches {shown}{how}"), name)
            }
            Why::ByKey => ("touches a thread-local, by its key".to_owned(), None),
            Why::Unknown(what) => (format!("touches {what}"), None),
            Why::Kernel(Some(number)) => (format!("asks the kernel for number {number}"), None),
            Why::Kernel(None) => ("asks the kernel for anything".to_owned(), None),
            Why::Import(name) => (format!("uses {}", image.slots.name(name)), None),
            Why::Foreign(address) => (format!("uses a library at {address:#x}"), None),
            Why::Uncovered(address) => {
                let name = image.name(address);
                let name = name.unwrap_or_else(|| format!("{address:#x}"));
                (format!("uses {name}, which has no unwind entry"), None)
            }
        }
    }

    fn image_of(&self, node: u32) -> usize {
        match self.places[node as usize] {
            CodeLocation::Function { image, .. } | CodeLocation::Constant { image, .. } => {
                image as usize
            }
        }
    }
}

impl Image {
    /// Returns roughly how many bytes an image keeps.
    pub(super) fn memory_kept(&self) -> usize {
        self.functions.capacity() * size_of::<crate::frames::image::unwind::Function>()
            + self.slots.memory_kept()
            + self.symbols.memory_kept()
    }
}
