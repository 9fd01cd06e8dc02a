// Studies with their runs, then traces that belong to no study.
function make(tag, text, href) {
  const element = document.createElement(tag);
  if (href) element.href = href;
  if (text !== undefined) element.textContent = text;
  return element;
}

function table(head, rows) {
  const element = make("table");
  element.append(make("thead"), make("tbody"));
  element.tHead.append(line("th", head));
  for (const row of rows) element.tBodies[0].append(line("td", row));
  const scroll = make("div");
  scroll.className = "scroll";
  scroll.append(element);
  return scroll;
}

function line(tag, cells) {
  const row = make("tr");
  for (const cell of cells) {
    const element = make(tag);
    element.append(cell);
    row.append(element);
  }
  return row;
}

function studySection(study) {
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
    ...responses.map((name) => responseText((run.responses || {})[name])),
    run.valid ? "" : "not valid",
  ]);
  section.append(table(["run", "treatment", ...factors, ...responses, ""], rows));
  return section;
}

function countText(list, singular, plural) {
  return `${list.length} ${list.length === 1 ? singular : plural}`;
}

function responseText(response) {
  if (!response || typeof response.value !== "number") return "";
  return `${Number(response.value.toPrecision(4))} ${response.unit || ""}`;
}

withToken(async (token) => {
  try {
    const responses = [await request("/api/studies", token), await request("/api/traces", token)];
    if (responses.includes(null)) return;
    const [studies, traces] = [await responses[0].json(), await responses[1].json()];
    const list = document.getElementById("list");
    list.replaceChildren(...studies.map(studySection));
    const studyTraces = new Set(studies.flatMap((study) => study.runs.map((run) => run.trace)));
    const otherTraces = traces.filter((trace) => !studyTraces.has(trace.trace));
    if (otherTraces.length) {
      const rows = otherTraces.map((trace) => [
        make("a", trace.name, `/traces/${trace.trace}`),
        trace.command.slice(0, 200),
        trace.closing || "",
      ]);
      const section = make("section");
      section.append(make("h2", "Traces"), table(["trace", "command", "summary"], rows));
      list.append(section);
    }
    const ofRuns = traces.length - otherTraces.length;
    const suffix = ofRuns ? `, ${ofRuns} of runs of studies` : "";
    showState(`${countText(studies, "study", "studies")}, ${countText(traces, "trace", "traces")}${suffix}.`, "on");
  } catch (error) {
    showState(`The server does not answer (${error.message}).`, "off");
  }
});
