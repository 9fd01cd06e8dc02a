// The report takes the place of this page once the server has given it.
withToken(async (token) => {
  say("Reading the trace …", "on");
  const number = (location.pathname.match(/\/traces\/(\d+)/) || [0, 0])[1];
  try {
    const answer = await asked(`/api/traces/${number}/page`, token);
    if (answer === null) return;
    const page = await answer.text();
    document.open();
    document.write(page);
    document.close();
  } catch (error) {
    say(`The server does not show it (${error.message}).`, "off");
  }
});
