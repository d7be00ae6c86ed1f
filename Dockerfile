# One image for a federation's server and nodes (docs/federation.md).
FROM python:3.11-slim
WORKDIR /privrec
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir -c constraints.txt . \
 && useradd --create-home privrec
USER privrec
ENTRYPOINT ["privrec"]
