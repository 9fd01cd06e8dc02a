// The token: from the address (behind the #, which a browser does not send), from this tab, or asked for.
const KEPT = "penstock-token";

function say(text, kind) {
  document.getElementById("state").textContent = text;
  document.getElementById("state").className = `state ${kind}`;
}

// What is asked of the server with the token; null, and the door open, where it is another server's.
async function asked(path, token, more = {}) {
  const answer = await fetch(path, { headers: { Authorization: `Bearer ${token}`, ...more } });
  document.getElementById("door").hidden = answer.status !== 401;
  if (answer.status === 401) {
    sessionStorage.removeItem(KEPT);
    say("That is not the token of this server.", "off");
    return null;
  }
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  sessionStorage.setItem(KEPT, token);
  return answer;
}

function withToken(enter) {
  const door = document.getElementById("door");
  door.addEventListener("submit", (event) => {
    event.preventDefault();
    enter(document.getElementById("token").value.trim());
  });
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) history.replaceState(null, "", location.pathname);
  const token = given || sessionStorage.getItem(KEPT);
  if (token) enter(token);
  else door.hidden = false;
}
