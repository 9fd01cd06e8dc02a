// Studies with their runs, then the traces that are of none of them.
function make(tag, text, href) {
  const element = document.createElement(tag);
  if (href) element.href = href;
  if (text !== undefined) element.textContent = text;
  return element;
}

function table(head, rows) {
  const made = make("table");
  made.append(make("thead"), make("tbody"));
  made.tHead.append(line("th", head));
  for (const row of rows) made.tBodies[0].append(line("td", row));
  const scroll = make("div");
  scroll.className = "scroll";
  scroll.append(made);
  return scroll;
}

function line(tag, cells) {
  const row = make("tr");
  for (const cell of cells) {
    const made = make(tag);
    made.append(cell);
    row.append(made);
  }
  return row;
}

function ofStudy(study) {
  const section = make("section");
  const heading = make("h2");
  heading.append(study.report ? make("a", study.name, `/studies/${study.study}`) : study.name);
  section.append(heading);
  if (study.question) section.append(make("p", study.question));
  const factors = [...new Set(study.runs.flatMap((run) => Object.keys(run.levels || {})))];
  const responses = [...new Set(study.runs.flatMap((run) => Object.keys(run.responses || {})))];
  const rows = study.runs.map((run) => [
    run.trace === null ? run.run_id : make("a", run.run_id, `/traces/${run.trace}`),
    run.treatment_id || "",
    ...factors.map((name) => String((run.levels || {})[name] ?? "")),
    ...responses.map((name) => shown((run.responses || {})[name])),
    run.valid ? "" : "not valid",
  ]);
  section.append(table(["run", "treatment", ...factors, ...responses, ""], rows));
  return section;
}

function counted(list, one, many) {
  return `${list.length} ${list.length === 1 ? one : many}`;
}

function shown(response) {
  if (!response || typeof response.value !== "number") return "";
  return `${Number(response.value.toPrecision(4))} ${response.unit || ""}`;
}

withToken(async (token) => {
  try {
    const answers = [await asked("/api/studies", token), await asked("/api/traces", token)];
    if (answers.includes(null)) return;
    const [studies, traces] = [await answers[0].json(), await answers[1].json()];
    const list = document.getElementById("list");
    list.replaceChildren(...studies.map(ofStudy));
    const theirs = new Set(studies.flatMap((study) => study.runs.map((run) => run.trace)));
    const others = traces.filter((trace) => !theirs.has(trace.trace));
    if (others.length) {
      const rows = others.map((trace) => [
        make("a", trace.name, `/traces/${trace.trace}`),
        trace.command.slice(0, 200),
        trace.closing || "",
      ]);
      const section = make("section");
      section.append(make("h2", "Traces"), table(["trace", "command", "what it says"], rows));
      list.append(section);
    }
    const ofRuns = traces.length - others.length;
    const beside = ofRuns ? `, ${ofRuns} of runs of studies` : "";
    say(`${counted(studies, "study", "studies")}, ${counted(traces, "trace", "traces")}${beside}.`, "on");
  } catch (error) {
    say(`The server does not answer (${error.message}).`, "off");
  }
});
