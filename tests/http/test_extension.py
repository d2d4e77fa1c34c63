"""A second API and a page are mounted with plain FastAPI, and are behind the same layers."""

from collections.abc import Callable
from pathlib import Path

from fastapi import APIRouter
from starlette.staticfiles import StaticFiles

from client_lib.errors import NotFound
from server_stub.app import rest_api
from server_stub.http.api.context import CurrentUser
from tests.http.conftest import Running


def test_a_router_and_a_page_are_behind_authentication_and_access_log(
    start_server: Callable[..., Running], tmp_path: Path
) -> None:
    (tmp_path / "index.html").write_text("<h1>Jobs</h1>")
    router = APIRouter(prefix="/api/v2")

    @router.get("/hello")
    async def hello(user: CurrentUser, name: str = "") -> str:
        if name:
            raise NotFound(f"no {name} here")
        return f"hello {user.name}"

    app = rest_api()
    app.include_router(router)
    app.mount("/ui", StaticFiles(directory=tmp_path, html=True))
    server = start_server(app=app)
    ann, nobody = server.as_user("ann"), server.anonymous()
    assert ann("GET", "/api/v2/hello").json() == "hello ann"
    assert ann("GET", "/api/v2/hello?name=ben").json() == {
        "code": "not_found",
        "message": "no ben here",
    }
    assert ann("GET", "/ui/").text == "<h1>Jobs</h1>"
    assert ann("GET", "/ui/nowhere").status_code == 404
    assert [nobody("GET", path).status_code for path in ("/api/v2/hello", "/ui/")] == [401, 401]
    lines = [(line["path"], line["status"], line["user"]) for line in server.log_lines()]
    assert ("/api/v2/hello", 200, "ann") in lines
    assert ("/ui/", 200, "ann") in lines
    assert ("/ui/", 401, None) in lines
