// The report takes the place of this page once the server has given it.
withToken(async (token) => {
  say("Reading …", "on");
  const [, kind, number] = location.pathname.match(/\/(traces|studies)\/(\d+)/) || [0, "traces", 0];
  try {
    const answer = await asked(`/api/${kind}/${number}/page`, token);
    if (answer === null) return;
    let page = await answer.text();
    if (location.pathname !== "/") page = page.replace("<main>", '<main><p><a href="/">All that is served here</a></p>');
    document.open();
    document.write(page);
    document.close();
  } catch (error) {
    say(`The server does not show it (${error.message}).`, "off");
  }
});
