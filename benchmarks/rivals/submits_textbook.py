"""The rival of `submits.py`: FastAPI as its tutorial has it: a `def` route, a model, an ORM session
per request.

WAL and synchronous FULL: as durable as ours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Depends, FastAPI
from pydantic import BaseModel
from sqlalchemy import create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.types import JSON

_engine = create_engine(f"sqlite:///{os.environ['SUBMITS_DB']}", connect_args={"timeout": 30})


@event.listens_for(_engine, "connect")
def _durable(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")


class Base(DeclarativeBase):
    pass


class JobRow(Base):
    __tablename__ = "jobs"
    id: Mapped[int] = mapped_column(primary_key=True)
    spec: Mapped[dict[str, Any]] = mapped_column(JSON)
    code: Mapped[dict[str, Any]] = mapped_column(JSON)
    state: Mapped[str] = mapped_column(default="PENDING")


Base.metadata.create_all(_engine)
_session = sessionmaker(_engine)


class SubmitRequest(BaseModel):
    spec: dict[str, Any]
    code: dict[str, Any]
    submitter: dict[str, Any]


class JobInfo(BaseModel):
    id: int
    state: str
    spec: dict[str, Any]


def session() -> Iterator[Session]:
    with _session() as opened:
        yield opened


app = FastAPI()


@app.post("/api/v1/jobs", status_code=201)
def submit(request: SubmitRequest, db: Annotated[Session, Depends(session)]) -> JobInfo:
    row = JobRow(spec=request.spec, code=request.code)
    db.add(row)
    db.commit()
    db.refresh(row)
    return JobInfo(id=row.id, state=row.state, spec=row.spec)
