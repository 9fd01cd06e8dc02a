// Replace this page with the report.
withToken(async (token) => {
  showState("Reading …", "on");
  const [, kind, number] = location.pathname.match(/\/(traces|studies)\/(\d+)/) || [0, "traces", 0];
  try {
    const response = await request(`/api/${kind}/${number}/page`, token);
    if (response === null) return;
    let page = await response.text();
    if (location.pathname !== "/") page = page.replace("<main>", '<main><p><a href="/">All studies and traces</a></p>');
    document.open();
    document.write(page);
    document.close();
  } catch (error) {
    showState(`The server does not answer (${error.message}).`, "off");
  }
});
