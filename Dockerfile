# Two stages: the wheel is built where the tools are, and runs where they are not.
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY docker/requirements.txt docker/
COPY app app
RUN python -m venv /opt/toolferry \
 && /opt/toolferry/bin/pip install --no-cache-dir --require-hashes -r docker/requirements.txt \
 && /opt/toolferry/bin/pip install --no-cache-dir --no-deps .

FROM python:3.11-slim
COPY --from=build /opt/toolferry /opt/toolferry
RUN useradd --system --no-create-home toolferry
USER toolferry
# Inside a container the port is only reachable where the operator publishes it.
ENV HOST=0.0.0.0 PORT=8000
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=3s CMD ["/opt/toolferry/bin/python", "-c", \
  "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=2)"]
ENTRYPOINT ["/opt/toolferry/bin/toolferry"]
CMD ["serve"]
