// Token from the fragment of the address (which browsers do not send), the storage of this tab, or the form.
const STORAGE_KEY = "penstock-token";

function showState(text, kind) {
  document.getElementById("state").textContent = text;
  document.getElementById("state").className = `state ${kind}`;
}

// Fetch with the token. Returns null and shows the form if the token is invalid; throws for other errors.
async function request(path, token, headers = {}) {
  const response = await fetch(path, { headers: { Authorization: `Bearer ${token}`, ...headers } });
  document.getElementById("login").hidden = response.status !== 401;
  if (response.status === 401) {
    sessionStorage.removeItem(STORAGE_KEY);
    showState("Invalid token.", "off");
    return null;
  }
  if (!response.ok) throw new Error(`status ${response.status}`);
  sessionStorage.setItem(STORAGE_KEY, token);
  return response;
}

function withToken(connect) {
  const login = document.getElementById("login");
  login.addEventListener("submit", (event) => {
    event.preventDefault();
    connect(document.getElementById("token").value.trim());
  });
  const fromAddress = new URLSearchParams(location.hash.slice(1)).get("token");
  if (fromAddress) history.replaceState(null, "", location.pathname);
  const token = fromAddress || sessionStorage.getItem(STORAGE_KEY);
  if (token) connect(token);
  else login.hidden = false;
}
