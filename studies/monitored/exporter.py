# Export the progress of a transmission-daemon's torrent: exporter.py ADDRESS
# ruff: noqa - ten lines, as in the published case
# fmt: off
import http.server, json, sys, urllib.error, urllib.request
class Progress(http.server.BaseHTTPRequestHandler):
    def do_GET(self, session=""):
        ask = urllib.request.Request("http://127.0.0.1:9091/transmission/rpc", b'{"method": "torrent-get", "arguments": {"fields": ["percentDone"]}}', {"X-Transmission-Session-Id": session})
        try: done = json.load(urllib.request.urlopen(ask))["arguments"]["torrents"][0]["percentDone"]
        except urllib.error.HTTPError as error: return self.do_GET(error.headers["X-Transmission-Session-Id"])
        self.send_response(200); self.send_header("Content-Type", "text/plain"); self.end_headers()
        self.wfile.write(b"torrent_done_percent %.4f\n" % (100 * done))
    def log_message(self, *words): pass
http.server.HTTPServer((sys.argv[1], 9100), Progress).serve_forever()
